//! Pure. What `status` answers, of one host or of all.

use serde_json::Value;

pub struct StatusAnswer {
    /// Nothing is wrong.
    pub fine: bool,
    pub value: Value,
    pub text: String,
}

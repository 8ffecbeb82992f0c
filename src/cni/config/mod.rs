//! Pure. The plugin's configuration: what the runtime writes to stdin.

mod range;

pub use range::RangeConf;

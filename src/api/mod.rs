//! The agent's HTTP API on its own host: `/v1/status`, `/v1/changes`, `/v1/history`, `/v1/flows`, `/v1/drops`, `/v1/matrix`,
//! `/metrics`, `/healthz`, `/readyz`.
//!
//! ```text
//! loops of the agent ──heartbeats──▶ SharedState ◀──reads── server: a thread and an event loop of its own
//!          the loop ──known───▶   │
//!           changes ──journal─▶ Journal ──live──▶ /v1/changes
//! ```
//!
//! Nothing here is waited for by the agent, and nothing here can end it: a socket that cannot be had
//! is tried again, and a client costs at most one connection of a few.

pub mod answer;
pub mod controller_probes;
pub mod encryption;
pub mod http;
pub mod http_server;
pub mod listen;
pub mod metrics;
pub mod problems;
pub mod reachability;
pub mod server;
pub mod status;

pub use listen::Listen;

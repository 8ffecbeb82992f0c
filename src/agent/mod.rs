//! The host agent.

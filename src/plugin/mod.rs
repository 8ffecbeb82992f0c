//! The CNI plugin.

//! Which pod owns which address.

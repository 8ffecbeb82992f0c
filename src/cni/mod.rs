//! Pure. The CNI protocol as values.

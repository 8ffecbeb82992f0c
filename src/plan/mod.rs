//! Pure. What is wanted against what is found.

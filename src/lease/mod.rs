//! Who owns which subnet.

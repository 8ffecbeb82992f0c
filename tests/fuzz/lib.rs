//! Every kind of foreign bytes, for the fuzz targets.

pub mod parsers;

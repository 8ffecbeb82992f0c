//! All parsers of foreign bytes, for the fuzz targets.

pub mod parsers;

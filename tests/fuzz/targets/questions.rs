#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| humanz_fuzz::parsers::run("questions", data));

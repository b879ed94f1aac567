#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| portreeve_fuzz::inputs::guard_record(bytes));

"""The laws: pure functions, arrays in, arrays out. No I/O, no model, no logging."""

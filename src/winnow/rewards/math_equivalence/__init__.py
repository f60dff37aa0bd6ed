"""Is an answer mathematically the same as the gold? Exact rules first, computer algebra for what they leave open."""

"""Trackers: services that display a run while it trains. Their libraries are imported when a run starts."""

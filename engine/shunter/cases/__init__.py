"""Unit tests for policies: a small fleet, values over simulated time, and what must be found and planned then."""

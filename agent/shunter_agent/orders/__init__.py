"""Orders carried out: journal, effect, journal. One module per side of an operation."""

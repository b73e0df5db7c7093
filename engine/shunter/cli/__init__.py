"""The shunter command, one file per verb."""

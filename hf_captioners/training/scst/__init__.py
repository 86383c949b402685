"""Self-critical sequence training (SCST): trainer, arguments, sampling and losses."""

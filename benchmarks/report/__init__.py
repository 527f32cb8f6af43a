"""How the results of the scripts beside are shown."""

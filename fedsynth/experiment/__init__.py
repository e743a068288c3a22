"""One run, from an experiment file to the record in its folder."""

"""Reports of a run; each is made from the JSON document."""

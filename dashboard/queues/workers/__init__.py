"""The calls for workers that are gone."""

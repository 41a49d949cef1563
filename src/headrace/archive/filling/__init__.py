"""Filling: embedders turn queued keys into stored vectors, and backfills fill new space versions."""

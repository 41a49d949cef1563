"""Versions in processes of their own: a crash, a leak or a hang of one takes nobody along."""

"""Which versions of which models are loaded, and when: sources, policies, the manager, handles."""

"""Records of calls and actions: Outcomes, traces, the access log, the audit log, and a metrics port."""

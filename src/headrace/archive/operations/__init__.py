"""Opening an archive, and its administration: status, alarms, default versions, drops and whole versions."""

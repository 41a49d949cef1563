"""`make demo`: real ratings become a model, a server and answers; a better version arrives under load."""

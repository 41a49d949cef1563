"""The other servers, written as their own documentation shows; they share nothing with headrace."""

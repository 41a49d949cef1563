"""Rows in a topic of Apache Kafka: read in an order that can be repeated, and written."""

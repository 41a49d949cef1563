"""Read rows from a topic of Apache Kafka in a reproducible order, and publish rows to it."""

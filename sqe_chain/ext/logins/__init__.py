"""Functions that give login tokens to Kafka's clients: each is named by the property `oauth_cb`."""

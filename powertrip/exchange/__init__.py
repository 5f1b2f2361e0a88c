"""Moving updates between sites."""

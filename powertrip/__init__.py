"""PowerTrip trains one model across sites whose power and links change by the hour."""

__version__ = "0.1.0"

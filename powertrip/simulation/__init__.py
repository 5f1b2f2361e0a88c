"""The same run in virtual time: real learning, a modelled clock."""

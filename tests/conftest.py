"""Settings of all tests: no verdict of Hypothesis depends on how busy the machine is."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

"""jetrelay for the tests of applications: a plugin for pytest. See docs/how-to/testing.md.

pytest loads `jetrelay_pytest.plugin` wherever jetrelay is installed, so that module imports pytest and nothing
else. What a fixture needs is imported when a test asks for the fixture.
"""

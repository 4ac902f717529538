"""The documentation as a site, and the reference pages that are written from the code."""

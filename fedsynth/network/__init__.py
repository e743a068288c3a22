"""Runs over a network: the Flower apps, how a run is started, what a site and a federation folder hold."""

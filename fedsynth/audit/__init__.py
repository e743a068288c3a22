"""Can a claim about privacy be refuted? Neighbouring data sets, membership, lower bounds."""

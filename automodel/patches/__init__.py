"""One file per upstream defect: what is wrong, where, in which versions, and the test that says when it can go."""

"""From which length on a mechanism costs less than softmax attention: measured, located with an interval, as table and plot."""

"""Values and rules without input, output, a clock or a log, grouped by idea."""

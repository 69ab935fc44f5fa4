"""The image, the chart and what goes with them, held to what they promise."""

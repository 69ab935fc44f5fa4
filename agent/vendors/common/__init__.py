"""What several vendors have in common; standard library and contract alone, save for `vendor_settings`."""

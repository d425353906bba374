"""The cloud side of Draftwire: one target model verifying the drafts of many devices."""

"""One module or package for each verb of `rn50` that looks at runs and models from outside."""

"""Spatial verification: do the features of two photos agree with one affine map?"""

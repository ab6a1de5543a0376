"""Draw labeled videos and photos: landmarks, skeleton, trails and a legend on frames and images."""

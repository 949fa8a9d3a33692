"""How large an installation a load needs: arithmetic from eight inputs and the measured costs of this build."""

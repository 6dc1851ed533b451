//! What the proxy shows to its TLS clients: a certificate and its key, from files, read again at SIGHUP.
//!
//! rustls speaks the protocol, over aws-lc-rs: on a CPU with VAES it encrypts up to twice as fast as over ring, and
//! both need nothing but a C compiler to build.

use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, InconsistentKeys, ServerConfig};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tracing::warn;
use x509_parser::certificate::X509Certificate;
use x509_parser::public_key::PublicKey;
use x509_parser::time::ASN1Time;

/// A certificate chain and its key, and where they came from.
#[derive(Debug)]
pub struct Identity {
    certificates: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    current: Mutex<Arc<ServerConfig>>,
}

impl Identity {
    /// Reads both files (PEM), and checks that they belong together.
    pub fn open(certificates: &Path, key: &Path) -> anyhow::Result<Arc<Identity>> {
        let provider = Arc::new(default_provider());
        let current = Mutex::new(settings(read(certificates, key, &provider)?, &provider)?);
        let (certificates, key) = (certificates.to_owned(), key.to_owned());
        Ok(Arc::new(Identity { certificates, key, provider, current }))
    }

    /// Reads the files again, for the clients to come: none of them takes up a session that began under what was there before.
    /// After an error that stays in use.
    pub fn reload(&self) -> anyhow::Result<()> {
        let fresh = settings(read(&self.certificates, &self.key, &self.provider)?, &self.provider)?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// The settings of a connection that begins now.
    pub fn settings(&self) -> Arc<ServerConfig> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// TLS 1.2 and 1.3, HTTP/1.1. The sessions that can be taken up again are kept here, so they go with the certificate.
fn settings(pair: CertifiedKey, provider: &Arc<CryptoProvider>) -> anyhow::Result<Arc<ServerConfig>> {
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The most of a file that is read: bundles of all the world's roots are smaller, and a device has no end.
const LARGEST: u64 = 1 << 20;

/// The most that clients take of a chain: rustls, and no client that we know takes less (OpenSSL: 100 KiB).
const LONGEST: usize = (64 << 10) - 1;

/// RSA keys of fewer bits are refused by aws-lc-rs, and by clients.
const LEAST_BITS: usize = 2048;

/// All of a file, and its mode. Whatever lies under that name by now: a pipe must not keep who reads waiting.
fn contents(path: &Path, flag: &str) -> anyhow::Result<(Vec<u8>, u32)> {
    let no_file = |what| anyhow::anyhow!("{flag} is {what}, no regular file: name a PEM file");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NXIO) => return Err(no_file("a socket, or a device that is not there")),
        other => File::from(other.with_context(|| flag.to_owned())?),
    };
    let about = file.metadata().with_context(|| flag.to_owned())?;
    match about.file_type() {
        kind if kind.is_file() => {}
        kind if kind.is_dir() => return Err(no_file("a directory")),
        kind if kind.is_fifo() => return Err(no_file("a named pipe")),
        _ => return Err(no_file("a device")),
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).with_context(|| flag.to_owned())?;
    if bytes.len() as u64 > LARGEST {
        bail!(
            "{flag} has more than 1 MiB, and what is needed a few KiB: name the PEM file of this server alone"
        );
    }
    Ok((bytes, about.mode()))
}

fn read(certificates: &Path, key: &Path, provider: &CryptoProvider) -> anyhow::Result<CertifiedKey> {
    let (cert_flag, key_flag) =
        (format!("--tls-cert {}", certificates.display()), format!("--tls-key {}", key.display()));
    let (bytes, _) = contents(certificates, &cert_flag)?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, pem::Error>>()
        .map_err(|error| anyhow::anyhow!("{cert_flag} is damaged: {error}"))?;
    let Some(first) = chain.first() else {
        bail!("{cert_flag} has no certificate in it: a PEM file with \"BEGIN CERTIFICATE\" is needed");
    };
    // With its length each, and its extensions' (RFC 8446 section 4.4.2).
    let length: usize = chain.iter().map(|certificate| certificate.len() + 5).sum();
    if length > LONGEST {
        bail!(
            "{cert_flag} has {} certificates of {length} bytes, and clients take 64 KiB: leave the server's own and those \
             between it and a root",
            chain.len()
        );
    }
    let (bytes, mode) = contents(key, &key_flag)?;
    let secret = match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(secret) => secret,
        // PKCS #8's own kind of section, or the header that OpenSSL wrote before there was one (RFC 1421 section 4.6.1.1).
        Err(_) if has(&bytes, "BEGIN ENCRYPTED PRIVATE KEY") || has(&bytes, "Proc-Type: 4,ENCRYPTED") => {
            bail!(
                "{key_flag} is encrypted: write it without its passphrase (openssl pkey -in FILE -out FILE)"
            )
        }
        Err(pem::Error::NoItemsFound) => {
            bail!("{key_flag} has no private key in it: a PEM file with \"BEGIN PRIVATE KEY\" is needed")
        }
        Err(error) => bail!("{key_flag} is damaged: {error}"),
    };
    // rustls judges; this only finds words for it, and does without what it cannot read.
    let about = x509_parser::parse_x509_certificate(first).ok().map(|(_, about)| about);
    let secret = match provider.key_provider.load_private_key(secret) {
        Ok(secret) => secret,
        Err(why) => match about.as_ref().and_then(rsa_bits) {
            Some(bits) if bits < LEAST_BITS => bail!(
                "{key_flag}: RSA keys of less than {LEAST_BITS} bits are refused, and the one of {cert_flag} has {bits}: \
                 make a new key (openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256), and have it certified"
            ),
            _ => bail!(
                "{key_flag} cannot be used: {why}; RSA of {LEAST_BITS} to 8192 bits, ECDSA on P-256, P-384 or P-521, and \
                 Ed25519 can"
            ),
        },
    };
    let fits = |certificate: &CertificateDer<'static>| {
        CertifiedKey::new(vec![certificate.clone()], secret.clone()).keys_match()
    };
    match fits(first) {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            match chain.iter().position(|certificate| fits(certificate).is_ok()) {
                Some(n) => bail!(
                    "{key_flag} does not belong to the first certificate of {cert_flag} but to number {}: put that one first",
                    n + 1
                ),
                None => bail!(
                    "{key_flag} does not belong to the first certificate of {cert_flag}: name the key that it was made for"
                ),
            }
        }
        Err(Error::InvalidCertificate(why)) => bail!("{cert_flag} holds no valid certificate: {why:?}"),
        Err(why) => bail!("{key_flag} cannot be used: {why}"),
    }
    if mode & 0o4 != 0 {
        warn!(
            target: "onecopy proxy",
            "{key_flag} has a mode that lets every user of this machine read it: chmod o-r it"
        );
    }
    // It is used all the same: a client that was told to may take it, and the operator may be about to replace it.
    if let Some(about) = about {
        let (from, to, now) = (about.validity().not_before, about.validity().not_after, ASN1Time::now());
        if now > to {
            warn!(
                target: "onecopy proxy",
                "{cert_flag} expired on {to}, and clients refuse it: replace it, then send SIGHUP"
            );
        } else if now < from {
            warn!(
                target: "onecopy proxy",
                "{cert_flag} is valid from {from} only, and clients refuse it: is this machine's clock right?"
            );
        }
    }
    Ok(CertifiedKey::new(chain, secret))
}

fn rsa_bits(about: &X509Certificate<'_>) -> Option<usize> {
    match about.public_key().parsed() {
        Ok(PublicKey::RSA(key)) => Some(key.key_size()),
        _ => None,
    }
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(certificates: &Path, key: &Path) -> String {
        format!("{:#}", Identity::open(certificates, key).unwrap_err())
    }

    #[test]
    fn each_bad_file_is_named_with_its_fault() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let write = |name: &str, text: &str| {
            std::fs::write(path(name), text).unwrap();
            path(name)
        };
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let other = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let cert = write("cert", &made.cert.pem());
        let key = write("key", &made.signing_key.serialize_pem());
        let identity = Identity::open(&cert, &key).unwrap();

        let missing = path("missing");
        assert!(said(&missing, &key).contains("--tls-cert") && said(&missing, &key).contains("No such file"));
        assert!(said(&cert, &missing).contains("--tls-key") && said(&cert, &missing).contains("missing"));
        assert!(said(&key, &key).contains("has no certificate in it"));
        assert!(said(&cert, &cert).contains("has no private key in it"));
        assert!(said(&cert, &write("empty", "")).contains("has no private key in it"));
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        assert!(said(&cert, &write("encrypted", encrypted)).contains("without its passphrase"));
        let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n-----END RSA \
                   PRIVATE KEY-----\n";
        assert!(said(&cert, &write("old", old)).contains("without its passphrase"));
        let foreign = write("foreign", &other.signing_key.serialize_pem());
        assert!(said(&cert, &foreign).contains("does not belong to the first certificate"));
        let noise = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(said(&write("noise", noise), &key).contains("no valid certificate"));
        let cut = &made.cert.pem()[..100];
        assert!(said(&write("cut", cut), &key).contains("cut"));
        let noise = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert!(said(&cert, &write("noise", noise)).contains("cannot be used"));
        assert!(said(dir.path(), &key).contains("directory"));

        // A reload that fails leaves what was there.
        let before = identity.settings();
        write("cert", "");
        assert!(identity.reload().is_err());
        assert!(Arc::ptr_eq(&identity.settings(), &before));
        write("cert", &other.cert.pem());
        write("key", &other.signing_key.serialize_pem());
        identity.reload().unwrap();
        assert!(!Arc::ptr_eq(&identity.settings(), &before));
    }
}

//! Certificates of the tests' own, by openssl.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Who issues them.
pub struct Authority {
    dir: tempfile::TempDir,
}

/// Files in PEM.
pub struct Certificate {
    pub cert: PathBuf,
    pub key: PathBuf,
}

const CONFIG: &str = "
[req]
distinguished_name = name
prompt = no
x509_extensions = authority
[name]
CN = authority
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[ca]
default_ca = it
[it]
new_certs_dir = .
database = index
serial = serial
certificate = authority.crt
private_key = authority.key
default_md = sha256
policy = policy
unique_subject = no
[policy]
commonName = supplied
";

impl Authority {
    pub fn new() -> Authority {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
        // That nobody else has.
        let name = format!("authority {}", dir.path().display());
        Authority::make(dir, &name)
    }

    pub fn called(name: &str) -> Authority {
        Authority::make(tempfile::tempdir_in("/var/tmp").expect("a directory"), name)
    }

    fn make(dir: tempfile::TempDir, name: &str) -> Authority {
        let authority = Authority { dir };
        authority.write("config", &CONFIG.replace("CN = authority", &format!("CN = {name}")));
        authority.write("index", "");
        authority.write("serial", "1000");
        authority.openssl(
            "req -x509 -config config -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
             -keyout authority.key -out authority.crt",
        );
        authority
    }

    /// Its own certificate.
    pub fn file(&self) -> PathBuf {
        self.path("authority.crt")
    }

    /// One that is valid for these names (`IP:127.0.0.1,DNS:localhost`).
    pub fn issue(&self, names: &str) -> Certificate {
        self.issue_until(names, "20400101000000Z")
    }

    /// One that was.
    pub fn issue_expired(&self, names: &str) -> Certificate {
        self.issue_until(names, "20210101000000Z")
    }

    fn issue_until(&self, names: &str, end: &str) -> Certificate {
        let number = std::fs::read_dir(self.dir.path()).expect("readable").count();
        let extensions = format!(
            "basicConstraints = critical,CA:FALSE\nextendedKeyUsage = serverAuth,clientAuth\nsubjectAltName = {names}\n"
        );
        self.write(&format!("{number}.extensions"), &extensions);
        self.openssl(&format!(
            "req -new -config config -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=issued \
             -keyout {number}.key -out {number}.request"
        ));
        self.openssl(&format!(
            "ca -batch -notext -config config -startdate 20200101000000Z -enddate {end} \
             -extfile {number}.extensions -in {number}.request -out {number}.crt"
        ));
        Certificate { cert: self.path(&format!("{number}.crt")), key: self.path(&format!("{number}.key")) }
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::join(self.dir.path(), name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    fn openssl(&self, words: &str) {
        let mut command = Command::new("openssl");
        command.args(words.split_whitespace()).current_dir(self.dir.path()).stdin(Stdio::null());
        let output = command.output().expect("openssl is installed (`make setup`)");
        assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
